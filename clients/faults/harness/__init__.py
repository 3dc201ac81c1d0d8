"""What plays the scenarios: servers, a proxy, subjects, and the judge."""
