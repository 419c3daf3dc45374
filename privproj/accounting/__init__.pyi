from privproj.accounting.choice import Choice as Choice
from privproj.accounting.columns import ColumnResult as ColumnResult
from privproj.accounting.queries import Comparison as Comparison
from privproj.accounting.worth import Worth as Worth
from privproj.result import LowerBound as LowerBound, Rows as Rows
