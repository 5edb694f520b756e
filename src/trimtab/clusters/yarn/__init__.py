"""YARN: its queue files and its ResourceManager's answers as queues, clusters and jobs."""
