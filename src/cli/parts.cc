#include "cli/parts.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/counted.h"
#include "base/status.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/documents.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

// Where to cut `text` so that the front has at most `most` bytes: behind the last paragraph in its second half, else
// the last line, else the last word, else between characters.
std::size_t cut_before(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  const std::string_view front = text.substr(0, most);
  for (const std::string_view end : {"\n\n", "\n", " "})
    if (const std::size_t at = front.rfind(end); at != std::string_view::npos && at >= most / 2) return at + end.size();
  std::size_t at = most;
  while (at > 1 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

// Tokens that the question, the system message and the template take, at most.
std::int64_t tokens_beside(const RunOptions& options, const Engine& engine) {
  constexpr std::int64_t kTemplate = 32;
  return count_tokens(engine, *options.prompt) + protected_tokens(engine, options.system) + kTemplate;
}

class Parts {
 public:
  Parts(const RunOptions& options, Engine& engine) : options_(options), engine_(engine) {}

  // Returns the answer to the question about a text, which is printed meanwhile.
  Result<std::string> ask(std::string_view text) {
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine_.new_session(options_.session));
    Runner runner(engine_, *session);
    std::string message(text);
    join_part(message, *options_.prompt);
    if (!options_.system.empty()) KVASIR_RETURN_IF_ERROR(runner.say(options_.system, "system"));
    KVASIR_RETURN_IF_ERROR(options_.chat ? runner.say(message) : runner.read(message));
    KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, runner.answer(options_.generate, print));
    KVASIR_RETURN_IF_ERROR(print("\n"));
    if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
    return result.text;
  }

  Status run(std::string_view document, std::int64_t limit) {
    const auto count = [&](std::string_view text) { return count_tokens(engine_, text); };
    const std::vector<std::string_view> parts = cut_into_parts(document, limit, count);
    note("kvasir: {} of up to {}\n", counted(std::ssize(parts), "part"), counted(limit, "token"));
    if (parts.size() == 1) return ask(document).status();
    std::string answers;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      KVASIR_RETURN_IF_ERROR(print(fmt::format("--- part {} of {}\n", i + 1, parts.size())));
      KVASIR_ASSIGN_OR_RETURN(const std::string answer, ask(parts[i]));
      join_part(answers, fmt::format("Part {}: {}", i + 1, answer));
    }
    if (const std::int64_t tokens = count(answers); tokens > limit) {
      note("kvasir: the answers have {} together, more than one part may have: they are not joined; -n makes them shorter\n",
           counted(tokens, "token"));
      return {};
    }
    KVASIR_RETURN_IF_ERROR(print("--- all parts\n"));
    return ask(answers).status();
  }

 private:
  const RunOptions& options_;
  Engine& engine_;
};

}  // namespace

std::vector<std::string_view> cut_into_parts(std::string_view text, std::int64_t limit,
                                             const std::function<std::int64_t(std::string_view)>& count) {
  const auto fits = [&](std::string_view part) { return count(part) <= limit; };
  std::vector<std::string_view> parts;
  for (std::size_t wanted = static_cast<std::size_t>(std::max<std::int64_t>((count(text) + limit - 1) / limit, 1));;
       ++wanted) {
    parts.clear();
    const std::size_t bytes = std::max<std::size_t>((text.size() + wanted - 1) / wanted, 1);
    for (std::string_view rest = text; !rest.empty();) {
      // A cut ahead of its place makes the next part longer.
      const std::size_t done = text.size() - rest.size(), place = bytes * (parts.size() + 1);
      const std::size_t at = parts.size() + 1 < wanted ? cut_before(rest, std::max(place, done + 1) - done) : rest.size();
      parts.push_back(rest.substr(0, at));
      rest.remove_prefix(at);
    }
    if (bytes == 1 || std::ranges::all_of(parts, fits)) return parts;
  }
}

Status run_parts(const RunOptions& options, Engine& engine, std::string_view document) {
  constexpr std::int64_t kAnswer = 256;  // tokens of an answer without -n
  constexpr std::int64_t kLeast = 64;    // tokens of a part
  RunOptions chosen = options;
  if (chosen.generate.max_tokens < 0) chosen.generate.max_tokens = kAnswer;
  KVASIR_ASSIGN_OR_RETURN(const RequestPlan plan, engine.plan({.policy = options.session.policy,
                                                               .protect = options.session.protect,
                                                               .codec = options.session.codec,
                                                               .prompt = 1,
                                                               .max_tokens = 0}));
  const std::int64_t context = engine.model().context;
  const auto made = make_policy(plan.policy);
  const std::int64_t held = made.ok() ? (*made)->bound().value_or(context + 1) - 1 : context;
  const std::int64_t limit = std::min(held, context) - chosen.generate.max_tokens - tokens_beside(options, engine);
  if (limit < kLeast)
    return invalid_argument(
        "--parts: the question and an answer of {} leave no room for a part in {} tokens; give a smaller -n, or a larger "
        "cache",
        counted(chosen.generate.max_tokens, "token"), std::min(held, context));
  return Parts(chosen, engine).run(document, limit);
}

}  // namespace kvasir::cli
