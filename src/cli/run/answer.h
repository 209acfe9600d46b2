// Reads text into a session and generates from it, with progress, notices and Ctrl-C; prints the results of kvasir run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/run/run_options.h"

namespace kvasir::cli {

// Reports on standard error, once each, that the policy starts to drop tokens, and that the model sees more tokens than
// it was trained for.
class Notices {
 public:
  Notices(const Session& session, std::int64_t context);
  void check(const Session& session);
  // Suppresses the notice of dropping, which was announced before the text was read.
  void expect_forgetting() { forgets_ = true; }

 private:
  std::int64_t context_;
  bool watches_context_;
  bool forgets_ = false;
};

// Wraps the calls of one session. Engine and session must outlive it.
class Runner {
 public:
  // `kv_memory`: the KV memory given, bytes; 0: the cache was sized for the session's policy.
  Runner(const Engine& engine, Session& session, std::uint64_t kv_memory)
      : engine_(engine), session_(session), kv_memory_(kv_memory), notices_(session, engine.model().context) {}

  // Gets text as it becomes complete. An error ends the generation.
  using Writer = std::function<Status(std::string_view)>;

  // Reports, before a text is read, its tokens and how many of all tokens will be kept, unless all are kept. Returns
  // whether it reported.
  bool announce(std::string_view text);

  // As Session::read, say and generate. Errors: also kCancelled on an interrupt; those of `write`.
  Status read(std::string_view text);
  // `begun` (may be empty) is called once part of the message has been read.
  Status say(std::string_view content, std::string_view role = "user", const std::function<void()>& begun = {});
  Result<GenerateResult> answer(const GenerateOptions& options, const Writer& write);

 private:
  ReadingWork work() const { return reading_work(session_.kv().policy); }
  Session::Progress progress(ProgressBar& bar);

  const Engine& engine_;
  Session& session_;
  std::uint64_t kv_memory_;
  Notices notices_;
};

// Returns the number of tokens that a text adds behind others.
std::int64_t count_tokens(const Engine& engine, std::string_view text);

// Returns how many tokens a chat protects for this system message (empty: the template's own, if any).
std::int64_t protected_tokens(const Engine& engine, const std::string& system);

// Reports that a chat's policy protects less than the system message's tokens.
void note_partly_protected(const std::string& policy, std::int64_t tokens);

// Prints a generation's figures, as one line on standard error. `scope`: what the figures cover.
void print_summary(const GenerateResult& result, std::string_view scope = "");

// Reports that tokens read were dropped, so that an answer about them would be made up. `context`: the model's trained
// context, tokens.
void note_forgotten(const Session& session, std::int64_t context);

// Reads the prompt, generates and prints. Without a prompt, continues the loaded session where it ended.
Status run_once(const RunOptions& options, const Engine& engine, Session& session,
                std::optional<std::string_view> prompt);

}  // namespace kvasir::cli
