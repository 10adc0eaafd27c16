"""The demo: an agent that is killed half-way and resumed. `__main__` tells the story, `worker` runs the agent."""
