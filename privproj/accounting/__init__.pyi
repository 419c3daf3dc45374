from privproj.accounting.choice import Choice as Choice, Worth as Worth
from privproj.accounting.columns import ColumnResult as ColumnResult
from privproj.accounting.comparison import Comparison as Comparison
from privproj.result import LowerBound as LowerBound, Rows as Rows
