"""Where the controller reads jobs and capacity, and writes hints."""
