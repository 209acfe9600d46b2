// Renders Jinja templates as Hugging Face transformers renders chat templates: trim_blocks and lstrip_blocks on, loop
// controls, an immutable sandbox, and the functions raise_exception and strftime_now.
//
// Every byte of the output is known to come from the template or from the caller's variables, so that what a person
// typed is never taken for what the template says. Strings computed from both, such as JSON, count as the caller's.
// Not supported: inheritance, includes and imports, recursive loops, integers beyond 64 bits, and methods that change
// a list or a dictionary, which the sandbox refuses too.
// Thread-safety: a Template is immutable; renders may run on several threads.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/text.h"
#include "jinja/value.h"
#include "kvasir/status.h"

namespace kvasir::jinja {

struct Program;  // the parsed form

class Template {
 public:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  const Program& program() const { return *program_; }

 private:
  std::shared_ptr<const Program> program_;
};

// Bytes of a source. The longest templates of published models have some 40,000.
inline constexpr std::size_t kMostSource = 1 << 20;

// Errors: kInvalidArgument (syntax) or kUnsupported, naming line and column; kInvalidArgument for a source of more than
// kMostSource bytes, of which tokens and tree would take a hundred times as much memory.
Result<Template> parse(std::string_view source);

// What a render may use. The defaults suit conversations of some megabytes.
struct Limits {
  std::int64_t steps = 20'000'000;        // evaluated nodes, loop rounds and elements handled by filters
  std::size_t output_bytes = 64u << 20;   // of the rendered text
  std::size_t memory_bytes = 512u << 20;  // of all values alive at one time, roughly
  int depth = 600;                        // of nested statements, expressions and macro calls
};

// Where the loops of a template wrote about some of the caller's dictionaries.
struct Trace {
  struct Round {
    std::size_t subject;  // index in `subjects`
    std::size_t from;     // offset in the output where the round starts
  };
  // A loop that wrote to the output directly, and had at least one round over a subject: its element, or else the first
  // that a {% set %} of the round itself takes. Never empty.
  struct Loop {
    std::vector<Round> rounds;  // in their order
    std::size_t end = 0;        // offset in the output where the loop ends
  };
  std::vector<Value> subjects;  // of the caller: dictionaries, known by their identity
  std::vector<Loop> loops;      // in the order of their ends
};

// `now` is what strftime_now tells, in local time. `trace`: may be null; its loops are valid if the render succeeds.
// Errors: kInvalidArgument naming line and column; with the template's own message where it raises an exception.
// kResourceExhausted where a limit is exceeded.
Result<Text> render(const Template& parsed, const Variables& variables, std::time_t now, const Limits& limits = {},
                    Trace* trace = nullptr);

}  // namespace kvasir::jinja
