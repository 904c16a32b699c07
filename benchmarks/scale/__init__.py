"""The study across scale: its questions, its pages, and what it still costs."""
