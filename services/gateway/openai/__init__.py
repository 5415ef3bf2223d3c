"""The OpenAI API: request bodies, replies, chat templates."""
