"""The game: datapoints, decisions, protocols, replies and episodes."""
