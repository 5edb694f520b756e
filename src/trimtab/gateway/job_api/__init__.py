"""Jobs over HTTP: /v1/jobs and /v1/videos for clients, and a runner that sends jobs to nodes."""
