"""The recordings of requests (`serve --record`): gathered while a request runs, written to a folder, and explained."""
