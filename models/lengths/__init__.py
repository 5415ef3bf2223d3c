"""Training of predictors of remaining lengths (STAR): samples, baselines, measures."""
