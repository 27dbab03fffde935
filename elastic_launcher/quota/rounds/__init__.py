"""One round of the controller: from what is there, and what was promised, to what each job may hold."""
