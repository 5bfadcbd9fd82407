"""From fragments to what a learner needs: settings, batches of samples, targets; numpy alone."""
