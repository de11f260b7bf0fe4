"""Design spaces: schedule rules, default schedules, knobs, traces, hardware limits."""
