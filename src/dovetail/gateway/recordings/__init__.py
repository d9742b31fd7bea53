"""The recordings of requests (`serve --record`): gathered while a request runs, and written to a folder."""
