"""Pages from collected aggregates: no Spark here, and nothing to fetch for whoever reads them."""
