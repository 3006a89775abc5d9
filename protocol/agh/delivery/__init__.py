"""Extensions for delivery between daemons of this project: commit acknowledgements, and order."""
