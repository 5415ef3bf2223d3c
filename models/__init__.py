"""A small reasoning model made from nothing: its tasks, tokenizer, training and evaluation."""
