#include "session/side_by_side.h"

#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "scheduler/task.h"
#include "sequence/kv_report.h"

namespace kvasir {
namespace {

Status run_samples(BatchRunner& runner, std::span<Task> tasks, std::span<TextState> texts,
                   std::span<GenerateResult> results,
                   const std::function<bool(std::size_t, std::string_view)>& on_text) {
  std::vector<Turn> turns;
  std::vector<std::size_t> running;
  for (;;) {
    turns.clear();
    running.clear();
    for (std::size_t s = 0; s < tasks.size(); ++s) {
      if (tasks[s].prepare()) {
        turns.push_back({&tasks[s]});
        running.push_back(s);
      }
    }
    if (!turns.empty()) runner.make_room(turns);
    while (!turns.empty() && !runner.plan(turns).fits) {
      const std::size_t newest = running.back();
      tasks[newest].finish(FinishReason::kKvMemory);
      results[newest].kv = kv_report(*texts[newest].sequence);
      texts[newest].sequence.reset();  // its pages go to the others
      turns.pop_back();
      running.pop_back();
    }
    if (turns.empty()) break;
    runner.draft(turns);
    KVASIR_RETURN_IF_ERROR(runner.pass(turns));
    for (const std::size_t s : running)
      if (const std::string text = tasks[s].take_text(); !text.empty() && on_text && !on_text(s, text))
        tasks[s].finish(FinishReason::kCancelled);
  }
  for (std::size_t s = 0; s < tasks.size(); ++s)
    for (std::string text; tasks[s].status().ok() && !(text = tasks[s].flush()).empty();)
      if (on_text && !on_text(s, text)) break;
  return {};
}

}  // namespace

Result<std::vector<GenerateResult>> sample_side_by_side(
    BatchRunner& runner, const TextState& text, const Generation& first, std::uint64_t seed, int count,
    const std::function<bool(std::size_t, std::string_view)>& on_text) {
  std::vector<TextState> texts(static_cast<std::size_t>(count));
  std::vector<Task> tasks;
  for (std::size_t s = 0; s < texts.size(); ++s) {
    KVASIR_ASSIGN_OR_RETURN(texts[s].sequence, text.sequence->fork());
    texts[s].logits = text.logits;
    texts[s].newest = text.newest;
    Generation generation = first;
    if (s > 0) generation.become(s, seed + s);
    tasks.emplace_back(&texts[s], std::vector<TokenId>(), std::move(generation));
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<GenerateResult> results(texts.size());
  KVASIR_RETURN_IF_ERROR(run_samples(runner, tasks, texts, results, on_text));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (std::size_t s = 0; s < tasks.size(); ++s) {
    KvReport kv = texts[s].sequence != nullptr ? kv_report(*texts[s].sequence) : std::move(results[s].kv);
    GenerateResult& result = results[s] = tasks[s].generation().result();
    result.status = tasks[s].status();
    result.seconds = seconds.count();
    result.seed = seed + s;
    result.kv = std::move(kv);
  }
  return results;
}

}  // namespace kvasir
