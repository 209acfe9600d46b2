// The syntax tree of a template.
// Thread-safety: immutable once parsed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace kvasir::jinja {

// In the template, both from 1; columns count characters.
struct Place {
  int line = 1;
  int column = 1;
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Expression {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value ...
    kAttribute,  // child.name
    kIndex,      // child[child]
    kSlice,      // child[child:child:child], null where left out
    kCall,       // child(arguments)
    kFilter,     // child|name(arguments); a null child stands for the text of a block
    kTest,       // child is name(arguments)
    kNot,        // child
    kNegative,   // child
    kPositive,   // child
    kAnd,        // two children
    kOr,         // two children
    kConcat,     // children
    kCompare,    // children and as many operators less one
    kBinary,     // two children and one operator
    kIf,         // children: value, condition, otherwise (may be null)
  };
  Kind kind;
  Place place;
  int depth = 1;  // of the tree from here on
  std::string name;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  Arguments arguments;
};

// What is assigned to: names, an attribute of a namespace, or a tuple of targets.
struct Target {
  Place place;
  std::string name;           // empty: a tuple
  std::string attribute;      // not empty: name.attribute
  std::vector<Target> items;  // of a tuple
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: undefined
};

struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  bool takes_more = false;    // uses varargs
  bool takes_named = false;   // uses kwargs
  bool takes_caller = false;  // uses caller
  std::shared_ptr<const Body> body;
};

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // expression
    kFor,       // target, expression (iterated), condition (may be null), body, otherwise
    kIf,        // expression, body, branches, otherwise
    kSet,       // target, expression
    kSetBlock,  // target, expression (filters, may be null), body
    kMacro,     // macro
    kCall,      // expression (a call), macro (the caller)
    kFilter,    // expression (filters), body
    kScope,     // body, in a scope of its own; assigned: what `with` sets
    kBreak,
    kContinue,
  };
  Kind kind;
  Place place;
  std::string text;
  Target target;
  std::vector<std::pair<Target, ExpressionPtr>> assigned;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Body body;
  Body otherwise;
  std::vector<std::pair<ExpressionPtr, Body>> branches;  // kIf: the elif ones
  std::shared_ptr<const Macro> macro;
};

}  // namespace kvasir::jinja
