"""Reports: from run folders to pages."""
