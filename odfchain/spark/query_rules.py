"""The functions that an untrusted query may call, by kind: pure, deterministic, without side effects.

A function is listed when its result depends on nothing but its arguments: not on the clock, chance, the
session, files, the order in which rows happen to arrive, or the version of a library. Everything else is
refused, known or not. Names are those of Spark SQL, in lower case. `UNLISTED` only explains refusals.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from odfchain.text import one_line

SCALAR: dict[str, str] = {
    "arrays": """
        array array_append array_compact array_contains array_distinct array_except array_insert
        array_intersect array_join array_max array_min array_position array_prepend array_remove
        array_repeat array_size array_sort array_union arrays_overlap arrays_zip flatten get sequence slice
        sort_array""",
    "bits": """
        & << >> >>> ^ | ~ bit_count bit_get getbit shiftleft shiftright shiftrightunsigned""",
    "collections": "cardinality concat element_at reverse size try_element_at",
    "comparison": """
        ! < <= <=> = == != <> > >= and between equal_null ilike in isnan isnotnull isnull like not or regexp
        regexp_like rlike""",
    "conditions": """
        case coalesce if ifnull nanvl nullif nullifzero nvl nvl2 when zeroifnull greatest least""",
    "conversion": """
        bigint binary boolean cast date decimal double float int smallint string timestamp tinyint
        to_binary to_char to_number to_varchar try_to_binary try_to_number typeof""",
    "dates and times": """
        add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub
        date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract
        from_unixtime from_utc_timestamp hour last_day make_date make_dt_interval make_interval
        make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname
        months_between next_day quarter second session_window timestamp_micros timestamp_millis
        timestamp_seconds to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
        to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz
        try_make_timestamp_ntz try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds
        unix_timestamp weekday weekofyear window window_time year""",
    "hashes": "crc32 hash md5 sha sha1 sha2 xxhash64",
    "higher order": """
        aggregate exists filter forall map_filter map_zip_with reduce transform transform_keys
        transform_values zip_with""",
    "JSON and CSV": """
        from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv schema_of_json
        to_csv to_json parse_json try_parse_json variant_get try_variant_get is_variant_null""",
    "maps and structs": """
        map map_concat map_contains_key map_entries map_from_arrays map_from_entries map_keys map_values
        str_to_map named_struct struct""",
    "mathematics": """
        % * + - / abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot
        csc degrees div e exp expm1 factorial floor hex hypot ln log log10 log1p log2 mod negative pi pmod
        positive pow power radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide
        try_mod try_multiply try_subtract unhex width_bucket""",
    "text": """
        || ascii base64 bit_length btrim char char_length character_length chr concat_ws contains decode elt
        encode endswith find_in_set format_number format_string initcap instr lcase left len length
        levenshtein locate lower lpad ltrim luhn_check mask octet_length overlay position printf quote
        regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat
        replace right rpad rtrim soundex space split split_part startswith substr substring
        substring_index translate trim ucase unbase64 upper is_valid_utf8 make_valid_utf8 validate_utf8
        try_validate_utf8""",
    "URLs": "parse_url try_parse_url try_url_decode url_decode url_encode",
}

AGGREGATE: dict[str, str] = {
    "aggregates": """
        any approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count count_if covar_pop
        covar_samp every grouping grouping_id kurtosis max mean median min percentile percentile_cont
        percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
        regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp
        variance""",
}

WINDOW: dict[str, str] = {
    "window": "cume_dist dense_rank lag lead ntile percent_rank rank row_number",
}

GENERATOR: dict[str, str] = {
    "generators": """
        explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack""",
}

TABLE: dict[str, str] = {"tables": "range"}

ORDERED: dict[str, str] = {
    "of an order": """
        any_value array_agg collect_list first first_value last last_value nth_value""",
}
"""Allowed only over a window with ORDER BY: elsewhere the result depends on the order of arrival."""

SORTED: dict[str, str] = {"sorted at once": "array_agg collect_list collect_set"}
"""Also allowed as the argument of `sort_array` or `array_sort`, which take the order of arrival away."""

INLINE_NAMES = frozenset({"array", "map", "named_struct", "struct"})
"""Allowed in VALUES."""

SORTING = frozenset({"sort_array", "array_sort"})


def _names(*groups: dict[str, str]) -> frozenset[str]:
    return frozenset(name for group in groups for text in group.values() for name in text.split())


PLAIN_NAMES = _names(SCALAR, AGGREGATE, WINDOW, GENERATOR)
ORDERED_NAMES = _names(ORDERED)
SORTED_NAMES = _names(SORTED)
GENERATOR_NAMES = _names(GENERATOR)
TABLE_NAMES = _names(TABLE) | GENERATOR_NAMES
ALL_NAMES = PLAIN_NAMES | ORDERED_NAMES | SORTED_NAMES | TABLE_NAMES

OF_VALUES = _names(
    {
        "recorded by nobody yet": """
            aes_decrypt approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate assert_true
            bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count
            bitmap_or_agg collect_union count_min_sketch from_base32 hll_sketch_agg hll_sketch_estimate
            hll_union hll_union_agg hmac is_valid_variant jaro_winkler_similarity make_time raise_error
            schema_of_variant schema_of_variant_agg sentences time_diff time_trunc to_base32 to_time
            to_variant_object try_aes_decrypt try_to_time vector_avg vector_cosine_similarity
            vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum"""
    }
)
"""Functions of values alone, for queries whose result is not recorded."""

OUTSIDE = "runs code outside SQL"
"""The reason that holds for every query, also for those whose result is not recorded."""

_REASONS: dict[str, str] = {
    "reads the clock: a query may depend only on its input": """
        current_date current_time current_timestamp curdate getdate localtime localtimestamp now sysdate
        today""",
    "is random: a query must give the same result every time": """
        aes_encrypt gen_random_uuid rand randn random randstr shuffle uniform uuid""",
    "depends on the session, not on the data": """
        current_catalog current_database current_path current_schema current_time_zone current_timezone
        current_user session_user user version""",
    OUTSIDE: "java_method reflect try_reflect",
    "depends on how Spark happens to split the input": """
        input_file_block_length input_file_block_start input_file_name monotonically_increasing_id
        spark_partition_id""",
    "depends on the order of rows or on the version of a library": """
        approx_percentile approx_top_k collate collation histogram_numeric listagg max_by min_by mode
        percentile_approx string_agg""",
}

UNLISTED: dict[str, str] = {name: reason for reason, text in _REASONS.items() for name in text.split()}
"""Why well-known functions are not on the list."""

INSTEAD: dict[str, str] = {
    "approx_percentile": "use percentile",
    "percentile_approx": "use percentile",
    "current_date": "take a date column of the input",
    "current_timestamp": "take a time column of the input; the ledger adds system_time itself",
    "cbrt": "use power(x, 1D / 3)",
    "listagg": "use array_join(sort_array(collect_list(x)), ',')",
    "mask": "use regexp_replace(x, '[A-Z]', 'X')",
    "max_by": "use max(struct(key, value)).value",
    "min_by": "use min(struct(key, value)).value",
    "monotonically_increasing_id": "use row_number() OVER (ORDER BY …)",
    "now": "take a time column of the input; the ledger adds system_time itself",
    "string_agg": "use array_join(sort_array(collect_list(x)), ',')",
    "tanh": "use (exp(2 * x) - 1) / (exp(2 * x) + 1)",
    "uuid": "use sha2 over the columns that identify a row",
}
"""Replacements to suggest."""


# The classes of Spark's plans that may occur in a query, before and after names are resolved.
#
# An allow-list: a class that is not named here ends the query, whatever it is. `READ` holds what Spark's
# parser makes of a query; `RESOLVED` what its analyzer adds to that, besides the classes of the functions
# of `query_functions`. Commands, scripts, files, samples, hints, time travel, parameters, session variables
# and user-defined functions have classes of their own, and so are refused; `REFUSED` only explains some of
# them.

_ROOT = "org.apache.spark.sql.catalyst."
_LOGICAL = "plans.logical"


def classes_of(groups: dict[str, str]) -> frozenset[str]:
    """The whole names of Catalyst's classes, by the package that each group is in."""
    return frozenset(
        f"{_ROOT}{package}.{name}" for package, names in groups.items() for name in names.split()
    )


READ_PLANS = classes_of(
    {
        "analysis": """
            UnresolvedHaving UnresolvedInlineTable UnresolvedQualify UnresolvedRelation
            UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction""",
        _LOGICAL: """
            Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit Offset
            OneRowRelation Pivot Project Sort SubqueryAlias Union Unpivot UnresolvedWith
            WithWindowDefinition""",
    }
)

READ_EXPRESSIONS = classes_of(
    {
        "analysis": """
            MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction
            UnresolvedGenerator UnresolvedOrdinal UnresolvedStar UnresolvedStarExcept
            UnresolvedStarExceptOrReplace""",
        "expressions": """
            Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Concat
            CreateNamedStruct CreateStruct Cube CurrentRow$ Divide EqualNullSafe EqualTo Exists GreaterThan
            GreaterThanOrEqual GroupingSets ILike In InSubquery IntegralDivide IsNotNull IsNull
            LambdaFunction LateralSubquery LessThan LessThanOrEqual Like LikeAll LikeAny ListQuery Literal
            Multiply NamePlaceholder$ NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay RLike
            Remainder Rollup ScalarSubquery ShiftLeft ShiftRight ShiftRightUnsigned SortOrder
            SpecifiedWindowFrame StringLocate StringTrim StringTrimBoth StringTrimLeft StringTrimRight
            Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing$
            UnboundedPreceding$ UnresolvedNamedLambdaVariable UnresolvedWindowExpression UnspecifiedFrame$
            WindowExpression WindowSpecDefinition""",
        "expressions.aggregate": "AggregateExpression AnyValue First Last",
    }
)

INLINE_EXPRESSIONS = classes_of(
    {
        "analysis": "UnresolvedFunction",
        "expressions": "Cast CreateNamedStruct Literal NamePlaceholder$ UnaryMinus UnaryPositive",
    }
)
"""Expressions that a row of VALUES may hold: Spark computes it before there is a plan to check."""

RESOLVED_PLANS = classes_of(
    {
        _LOGICAL: """
            Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit
            Intersect Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Range Sort
            SubqueryAlias Union View Window WithCTE"""
    }
)

RESOLVED_EXPRESSIONS = READ_EXPRESSIONS | classes_of(
    {
        "expressions": """
            AttributeReference BinaryPad BinaryPredicate Ceil CommonExpressionDef CommonExpressionRef
            Contains DateAddYMInterval DatetimeSub DivideDTInterval DivideYMInterval EndsWith Explode
            ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes
            ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears Floor GetArrayItem
            GetArrayStructFields GetMapValue GetStructField Hour Inline InSet KnownNullable KnownNotNull
            LateralColumnAliasReference MakeTimestamp MakeTimestampFromDateTime MakeTimestampNTZ Mask
            Minute MultiplyDTInterval MultiplyYMInterval NamedLambdaVariable NullIfResult OuterReference
            PosExplode PreciseTimestampConversion RoundCeil RoundFloor Second SecondWithFraction
            StartsWith StringDecode StringInstr StringInstrWithOccurrence StringLPad StringRPad
            SubtractDates SubtractTimestamps TimestampAddInterval TimestampAddYMInterval ToCharacter
            TryEval TryMakeTimestamp TryMakeTimestampFromDateTime TryMakeTimestampNTZ DateAddInterval
            With""",
        "expressions.aggregate": "PercentileCont PercentileDisc PivotFirst",
        "expressions.variant": "ParseJson VariantGet",
    }
)

SUBQUERIES = classes_of({"expressions": "Exists LateralSubquery ListQuery ScalarSubquery"})

REFUSED: dict[str, tuple[str, str | None]] = {
    "CompoundBody": ("is a script", "give one query per step"),
    "ExpressionWithUnresolvedIdentifier": ("computes a name", "write the name itself"),
    "NamedParameter": ("is a parameter, and there is nothing to bind it to", "write the value"),
    "PipeOperator": ("is pipe syntax", "write SELECT … FROM …"),
    "PlanWithUnresolvedIdentifier": ("computes the name of a table", "write the name itself"),
    "PosParameter": ("is a parameter, and there is nothing to bind it to", "write the value"),
    "RelationTimeTravel": ("asks for another version of a table", "take the table as it is"),
    "RepartitionByExpression": ("says how to split the work, not what to compute", "use ORDER BY"),
    "Sample": ("takes a random sample", "choose rows with WHERE"),
    "ScriptTransformation": ("runs a program", None),
    "UnresolvedCollation": ("orders text by a library's rules", "compare with lower()"),
    "UnresolvedHint": ("is a hint to the optimizer", "leave it out"),
}
"""Why well-known classes are not on the lists: what the fragment does, and what to do instead."""


# Text that becomes a date or a time: it has to be always the same one.
#
# Spark reads '10:00' as that time of the day on which it reads it, 'now' and 'today' from the clock, and
# '12:00 Europe/Paris' by the time zones of the Java at hand. So a text becomes a time by a format, or it is
# a constant that spells out the date. Types are those of Spark's JSON: a text for a plain type, an object
# for an array, a map or a struct. Source: RFC-016.

_TEMPORAL = re.compile(r"(date|timestamp|timestamp_ntz|timestamp_ltz|time(\(\d+\))?)\Z")
_TEXT = re.compile(r"(string|char|varchar|variant)\b")
# The option that says how a text is read as each type.
_TIME_FORMATS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ltz": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
    "time": "timeFormat",
}

_DATE = re.compile(r"\s*[+-]?[0-9]{4,7}(?:-[0-9]|[T\s]|\Z)", re.ASCII)
_FIXED_ZONE = re.compile(r"(?:Z|UTC|GMT|UT)?(?:[+-][0-9:]+)?\s*\Z")
_BEFORE_ZONE = re.compile(r"[\s0-9:.T+-]*", re.ASCII)


def times_in(kind: Any) -> frozenset[str]:
    """The dates and times that a type holds at any depth."""
    if isinstance(kind, str):
        return frozenset({kind.partition("(")[0]}) if _TEMPORAL.match(kind) else frozenset()
    return frozenset().union(*(times_in(part) for part in parts_of(kind)))


def has_text(kind: Any) -> bool:
    """True if a type holds text at any depth, or values that may be text."""
    return bool(_TEXT.match(kind)) if isinstance(kind, str) else any(has_text(p) for p in parts_of(kind))


def holds(kind: Any, plain: Collection[str]) -> bool:
    """True if a type is one of these plain types, or holds one at any depth."""
    return kind in plain if isinstance(kind, str) else any(holds(part, plain) for part in parts_of(kind))


def reads_times(source: Any, target: Any) -> bool:
    """True if a cast of one type to another makes dates or times of text at any depth."""
    if isinstance(source, str) or isinstance(target, str):
        # a time of day that becomes a timestamp counts as well: Spark adds today's date
        made = times_in(target)
        return bool(made) and (has_text(source) or ("time" in times_in(source) and made != {"time"}))
    pairs = zip(parts_of(source), parts_of(target), strict=False)
    return any(reads_times(one, other) for one, other in pairs)


def unformatted(kind: Any, options: Mapping[str, str]) -> str | None:
    """The option that is missing when JSON or CSV is read as a type; None when every time has a format."""
    given = {name.lower() for name in options}
    wanted = [_TIME_FORMATS[name] for name in sorted(times_in(kind))]
    return next((name for name in wanted if name.lower() not in given), None)


def spells_date(text: str) -> bool:
    """True if a text begins with a date, so that Spark takes nothing of it from the clock."""
    return _DATE.match(text) is not None


def names_zone(text: str) -> bool:
    """True if a time is written with the name of a time zone, whose rules are the Java's at hand."""
    before = _BEFORE_ZONE.match(text)
    rest = text[before.end() :] if before is not None else text
    return _FIXED_ZONE.match(rest) is None


def parts_of(kind: Any) -> list[Any]:
    """The types that an array, a map or a struct is made of."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "array":
        return [kind["elementType"]]
    if kind["type"] == "map":
        return [kind["keyType"], kind["valueType"]]
    if kind["type"] == "struct":
        return [field["type"] for field in kind["fields"]]
    return []  # types of users, which queries have not


# SQL that depends on the Java at hand: its Unicode, time zones, charsets and texts of numbers.
#
# A derivative is computed again by others, on another Java. Measured on Java 17, 21 and 25, over all code
# points, two million numbers and all letters of patterns, these differ: `\b` next to letters that are not
# ASCII, `\p{…}`, `\X`, `(?U)` and `(?u)` in patterns; `mask` and `%S`; `tanh` and `cbrt` in their last
# digit; `F` in patterns of dates; texts of floating-point numbers beyond 2^53 (2^24 for `float`); the rules
# of named time zones; and the charsets, of which small Javas have few. Where the argument that decides is a
# constant, it is looked at; where it is not, the call is refused. Queries of roots are recorded once, and
# may use all of it. Source: RFC-016.

OF_JAVA = frozenset({"cbrt", "mask", "tanh"})
"""Functions whose results differ between versions of Java."""

_FORMATS = {
    **dict.fromkeys(("date_format", "to_char", "to_varchar"), (1,)),
    **dict.fromkeys(("to_date", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz"), (1,)),
    **dict.fromkeys(("try_to_date", "try_to_timestamp", "from_unixtime"), (1,)),
    **dict.fromkeys(("to_unix_timestamp", "unix_timestamp"), (1,)),
}
_PATTERNS = {
    **dict.fromkeys(("regexp", "regexp_like", "rlike", "split"), (1,)),
    **dict.fromkeys(("regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr"), (1,)),
    **dict.fromkeys(("regexp_replace", "regexp_substr"), (1,)),
    "str_to_map": (1, 2),
}
_ZONES = {
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (1,)),
    "convert_timezone": (0, 1),
}
# The zone comes last: after a date and a time of day, or after six numbers.
_MADE_IN_ZONE = frozenset(
    {"make_timestamp", "make_timestamp_ltz", "try_make_timestamp", "try_make_timestamp_ltz"}
)
_PRINTED = {"format_string": (0,), "printf": (0,)}
_CHARSETS = {"decode": (1,), "encode": (1,)}

OPTIONS_OF_JAVA = frozenset({"locale", "timezone", "enabledatetimeparsingfallback"})
"""Options of JSON and CSV, in lower case, that bring in Java's own data or its guesses."""

CHARSETS = frozenset({"US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32"})
"""Charsets that every Java has."""

_OF_UNICODE = re.compile(r"\\\\|\\[bBXNpP]|\(\?[a-zA-Z]*[uU]")
_OF_LOCALE = re.compile(r"%%|%[-#+ 0,(<]*(?:\d+\$)?[-#+ 0,(<\d.]*[SCtT]")
_QUOTED = re.compile(r"'[^']*'")
_FIXED_OFFSET = re.compile(r"Z|(?:UTC|GMT|UT)?(?:[+-]\d{1,2}(?::?\d{2}){0,2})?\Z", re.ASCII)


def deciding_arguments(function: str, arguments: int) -> tuple[int, ...]:
    """Which of so many arguments of a function decide whether its result is the same on every Java."""
    if function in _MADE_IN_ZONE:
        return (arguments - 1,) if arguments in (3, 7) else ()
    for table in (_FORMATS, _PATTERNS, _ZONES, _PRINTED, _CHARSETS):
        if function in table:
            return table[function]
    return ()


def java_dependence(function: str, arguments: int, text: str | None) -> tuple[str, str] | None:
    """(what is wrong, what to write instead) about a deciding argument; None when nothing is.

    `arguments` is how many there are, `text` is None for one that is not a constant text.
    """
    if function in _CHARSETS and arguments != 2:  # the other `decode` compares values
        return None
    if text is None:
        return (
            "is decided by the data, so it is not known whether every Java does the same",
            "write a constant",
        )
    if function in _FORMATS:
        return _format_dependence(text)
    if function in _PATTERNS:
        return pattern_dependence(text)
    zone = function in _ZONES or function in _MADE_IN_ZONE
    if zone and (not text or names_zone("10:00" + text) or not _FIXED_OFFSET.match(text)):
        return (
            "depends on the rules of a time zone, which differ between versions of Java",
            "take a fixed offset such as '+02:00', or convert where the data is ingested",
        )
    if function in _PRINTED and any(found != "%%" for found in _OF_LOCALE.findall(text)):
        return (
            "prints by rules that differ between versions of Java",
            "use upper, or date_format with numbers",
        )
    if function in _CHARSETS and text.upper() not in CHARSETS:
        return "names a charset that not every Java has", "one of " + ", ".join(sorted(CHARSETS))
    return None


def option_dependence(options: Mapping[str, str], *, formats: bool) -> tuple[str, str] | None:
    """Find options of JSON or CSV that depend on the Java; `formats` are looked at, too."""
    for name, text in options.items():
        if name.lower() in OPTIONS_OF_JAVA:
            return f"has the option {one_line(name, 40)}", "leave it out"
        if formats and name.lower().endswith("format") and (wrong := _format_dependence(text)) is not None:
            return wrong
    return None


def _format_dependence(text: str) -> tuple[str, str] | None:
    found = re.search("[FOVvz]", _QUOTED.sub("", text))
    if found is None:
        return None
    return (
        f"has `{found.group()}` in its pattern, which differs between versions of Java",
        "take numbers: yyyy-MM-dd HH:mm:ssXXX",
    )


def pattern_dependence(text: str | None) -> tuple[str, str] | None:
    r"""Find what depends on the Java in a regular expression: `\p{L}` follows its edition of Unicode."""
    if text is None:
        return (
            "takes its pattern from the data, and some patterns differ between versions of Java",
            "write a constant",
        )
    found = next((m.group() for m in _OF_UNICODE.finditer(text) if m.group() != "\\\\"), None)
    if found is None:
        return None
    return (
        f"has `{found}` in its pattern, which differs between versions of Java",
        "name the characters, as in [A-Za-z0-9_]",
    )
