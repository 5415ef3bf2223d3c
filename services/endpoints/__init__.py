"""OpenAI endpoints that are not Headway's own: found, watched, and chosen among."""
