"""The functions that an untrusted query may call, by kind: pure, deterministic, without side effects.

A function is listed when its result depends on nothing but its arguments: not on the clock, chance, the
session, files, the order in which rows happen to arrive, or the version of a library. Everything else is
refused, known or not. Names are those of Spark SQL, in lower case. `UNLISTED` only explains refusals.
"""

from __future__ import annotations


def names(*texts: str) -> frozenset[str]:
    """The words of some texts."""
    return frozenset(name for text in texts for name in text.split())


_SCALAR = {
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

GENERATOR_NAMES = names(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack"
)

PLAIN_NAMES = GENERATOR_NAMES | names(
    *_SCALAR.values(),
    # aggregates
    """
        any approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count count_if covar_pop
        covar_samp every grouping grouping_id kurtosis max mean median min percentile percentile_cont
        percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
        regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp
        variance""",
    # over a window
    "cume_dist dense_rank lag lead ntile percent_rank rank row_number",
)

TABLE_NAMES = GENERATOR_NAMES | {"range"}

ORDERED_NAMES = names("any_value array_agg collect_list first first_value last last_value nth_value")
"""Allowed only over a window with ORDER BY: elsewhere the result depends on the order of arrival."""

SORTED_NAMES = names("array_agg collect_list collect_set")
"""Also allowed as the argument of `sort_array` or `array_sort`, which take the order of arrival away."""

INLINE_NAMES = frozenset({"array", "map", "named_struct", "struct"})
"""Allowed in VALUES."""

SORTING = frozenset({"sort_array", "array_sort"})

ALL_NAMES = PLAIN_NAMES | ORDERED_NAMES | SORTED_NAMES | TABLE_NAMES

OF_VALUES = names(
    """
        aes_decrypt approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate assert_true
        bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count
        bitmap_or_agg collect_union count_min_sketch from_base32 hll_sketch_agg hll_sketch_estimate
        hll_union hll_union_agg hmac is_valid_variant jaro_winkler_similarity make_time raise_error
        schema_of_variant schema_of_variant_agg sentences time_diff time_trunc to_base32 to_time
        to_variant_object try_aes_decrypt try_to_time vector_avg vector_cosine_similarity
        vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum"""
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


# The classes of Spark's plans that may occur in a query, before and after names are resolved.
#
# An allow-list: a class that is not named here ends the query. `READ` holds what Spark's
# parser makes of a query; `RESOLVED` what its analyzer adds to that, without the classes of the functions
# of `query_functions`. Commands, scripts, files, samples, hints, time travel, parameters, session variables
# and user-defined functions have classes of their own, and so are refused; `REFUSED` only explains some of
# them.

_ROOT = "org.apache.spark.sql.catalyst."
_LOGICAL = "plans.logical"


def classes_of(groups: dict[str, str]) -> frozenset[str]:
    """The whole names of Catalyst's classes, by the package that each group is in."""
    return frozenset(f"{_ROOT}{package}.{name}" for package in groups for name in groups[package].split())


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
