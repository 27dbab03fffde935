"""What is wrong with objects of Argo's API."""
