"""The oracle: a server with OpenAI's interface that plays known solutions. It tests the pipeline and is no model."""
