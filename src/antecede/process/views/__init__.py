"""Views of a system: who is a member, and how all members go from one view to the next together."""
