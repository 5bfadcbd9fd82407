"""exp=serve: a model behind one address, for as long as the job lasts."""
