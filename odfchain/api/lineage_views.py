"""What datasets and records come from, as documents, indented lines, drawings and pages."""

from odfchain.lineage.blame_document import blame_document, blame_tree
from odfchain.lineage.graph_document import graph_document, trees_of
from odfchain.lineage.render_dot import to_dot
from odfchain.lineage.render_html import to_html

__all__ = ["blame_document", "blame_tree", "graph_document", "to_dot", "to_html", "trees_of"]
