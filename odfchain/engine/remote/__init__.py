"""The engine protocol: messages, the server, and the client of a coordinator."""
