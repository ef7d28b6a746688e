"""The documented hash, once more and slowly."""

import datetime as dt
import decimal

# -- vectors -------------------------------------------------------------------------------------

UTC = dt.timezone.utc
D = decimal.Decimal
