"""The settings of the swarm: worlds, policies, learning, and the data plane between them."""
