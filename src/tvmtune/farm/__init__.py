"""Boards: a tracker that knows them, servers that outlive what runs on them, and their users."""
