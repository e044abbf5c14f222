"""A target split over ranks: the first leads, and tells the others, which are processes of their own, each step."""
