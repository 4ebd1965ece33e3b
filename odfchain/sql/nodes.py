"""The classes of Spark's plans that may occur in a query, before and after names are resolved.

An allow-list: a class that is not named here ends the query, whatever it is. `READ` holds what Spark's
parser makes of a query; `RESOLVED` what its analyzer adds to that, besides the classes of the functions of
`query_functions`. Commands, scripts, files, samples, hints, time travel, parameters, session variables and
user-defined functions have classes of their own, and so are refused; `REFUSED` only explains some of them.
"""

from __future__ import annotations

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
"""What a row of VALUES may hold: Spark computes it before there is a plan that could be checked."""

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
