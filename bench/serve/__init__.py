"""Load generation against any OpenAI endpoint, and its figures."""
