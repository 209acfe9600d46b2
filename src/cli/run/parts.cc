#include "cli/run/parts.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/counted.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/run/answer.h"
#include "cli/run/documents.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

// Returns where to cut `text` so that the front has at most `most` bytes: behind the last paragraph in its second half,
// else the last line, else the last word, else between characters.
std::size_t cut_before(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  const std::string_view front = text.substr(0, most);
  for (const std::string_view end : {"\n\n", "\n", " "})
    if (const std::size_t at = front.rfind(end); at != std::string_view::npos && at >= most / 2) return at + end.size();
  std::size_t at = most;
  while (at > 1 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

// Returns the most tokens that the question, the system message and the template take.
std::int64_t tokens_beside(const RunOptions& options, const Engine& engine) {
  constexpr std::int64_t kTemplate = 32;
  return count_tokens(engine, *options.prompt) + protected_tokens(engine, options.system) + kTemplate;
}

// Returns the bytes of each token of a text.
Result<std::vector<std::size_t>> token_sizes(const ModelText& text, std::string_view content) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int32_t> tokens, text.encode(content, false));
  std::vector<std::size_t> sizes;
  for (const std::int32_t token : tokens) {
    KVASIR_ASSIGN_OR_RETURN(const std::string bytes, text.bytes_of(token));
    sizes.push_back(bytes.size());
  }
  return sizes;
}

// Returns the longest prompt that can be read and answered whole: memory and the trained context hold it, and no policy
// has to drop while it reads.
Result<std::int64_t> longest_prompt(const Engine& engine, const SessionOptions& session, std::int64_t answer) {
  const auto plan = [&](std::int64_t prompt) {
    return engine.plan({.policy = session.policy,
                        .protect = session.protect,
                        .codec = session.codec,
                        .prompt = prompt,
                        .max_tokens = answer});
  };
  KVASIR_ASSIGN_OR_RETURN(const RequestPlan first, plan(1));
  const auto made = make_policy(first.policy);
  std::int64_t most = engine.model().context - answer;
  if (made.ok() && (*made)->bound()) most = std::min(most, *(*made)->bound() - 1 - answer);
  const auto works = [&](std::int64_t prompt) {
    const Result<RequestPlan> found = plan(prompt);
    return found.ok() && found->refusal.ok();
  };
  if (most < 1 || works(most)) return most;
  std::int64_t good = 0;
  for (std::int64_t bad = most; bad - good > 1;) {
    const std::int64_t middle = good + (bad - good) / 2;
    (works(middle) ? good : bad) = middle;
  }
  return good;
}

class Parts {
 public:
  Parts(const RunOptions& options, Engine& engine) : options_(options), engine_(engine) {}

  // Returns the answer to the question about a text, and prints it meanwhile.
  Result<std::string> ask(std::string_view text) {
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine_.new_session(options_.session));
    Runner runner(engine_, *session, options_.engine.kv_memory);
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
    KVASIR_ASSIGN_OR_RETURN(const std::vector<std::size_t> sizes, token_sizes(engine_.text(), document));
    const std::vector<std::string_view> parts = cut_into_parts(document, limit, sizes);
    note("kvasir: {} of up to {}\n", counted(std::ssize(parts), "part"), counted(limit, "token"));
    if (parts.size() == 1) return ask(document).status();
    std::string answers;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      KVASIR_RETURN_IF_ERROR(print(fmt::format("--- part {} of {}\n", i + 1, parts.size())));
      KVASIR_ASSIGN_OR_RETURN(const std::string answer, ask(parts[i]));
      join_part(answers, fmt::format("Part {}: {}", i + 1, answer));
    }
    if (const std::int64_t tokens = count_tokens(engine_, answers); tokens > limit) {
      note(
          "kvasir: the answers have {} together, more than one part may have: they are not joined; -n makes them "
          "shorter\n",
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
                                             std::span<const std::size_t> sizes) {
  std::vector<std::string_view> parts;
  std::size_t token = 0, place = 0;  // the first token that ends behind `begin`, and its start
  for (std::size_t begin = 0; begin < text.size();) {
    while (token < sizes.size() && place + sizes[token] <= begin) place += sizes[token++];
    const auto left = static_cast<std::int64_t>(sizes.size() - token);
    const std::int64_t count = std::max<std::int64_t>((left + limit - 1) / limit, 1);
    const auto share = static_cast<std::size_t>((left + count - 1) / count);
    std::size_t end = place;
    for (std::size_t i = token; i < std::min(token + share, sizes.size()); ++i) end += sizes[i];
    const std::string_view rest = text.substr(begin);
    const std::size_t at =
        count == 1 ? rest.size() : cut_before(rest, std::max(std::min(end, text.size()), begin + 1) - begin);
    parts.push_back(rest.substr(0, at));
    begin += at;
  }
  return parts;
}

Status run_parts(const RunOptions& options, Engine& engine, std::string_view document) {
  constexpr std::int64_t kAnswer = 256;  // tokens of an answer without -n
  constexpr std::int64_t kLeast = 64;    // tokens of a part
  RunOptions chosen = options;
  if (chosen.generate.max_tokens < 0) chosen.generate.max_tokens = kAnswer;
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t longest,
                          longest_prompt(engine, options.session, chosen.generate.max_tokens));
  const std::int64_t limit = longest - tokens_beside(options, engine);
  if (limit < kLeast)
    return invalid_argument(
        "--parts: an answer of {} and the question leave no room for a part; give a smaller -n, or a larger cache",
        counted(chosen.generate.max_tokens, "token"));
  return Parts(chosen, engine).run(document, limit);
}

}  // namespace kvasir::cli
