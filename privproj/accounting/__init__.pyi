from privproj.accounting.utility import Choice as Choice, Utility as Utility
from privproj.accounting.vectorized import ColumnResult as ColumnResult
from privproj.accounting.comparison import Comparison as Comparison
from privproj.result import LowerBound as LowerBound, Rows as Rows
