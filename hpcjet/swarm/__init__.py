"""Multi-agent RL: many agents in many worlds, acted for and learned from in arrays."""
