"""Report cards of partition folders: as values, as a page with pictures, side by side."""

from gnn_dist.report.card import PartitionCard, read_card
from gnn_dist.report.compare import compare_cards
from gnn_dist.report.page import card_page

__all__ = ["PartitionCard", "card_page", "compare_cards", "read_card"]
