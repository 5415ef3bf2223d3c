"""What trains predictors of remaining lengths (STAR): samples, training, baselines, measures."""
