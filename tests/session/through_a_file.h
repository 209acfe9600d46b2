// A sequence as it comes back from a session file.
#pragma once

#include <memory>

#include "session/session_file.h"
#include "support/engine_fixture.h"

namespace kvasir::test {

// Saves the sequence, and loads it into a cache of its own: `cache`, or null for one of the model's shape. The session
// that could not be saved or loaded has no sequence, and the test fails.
inline LoadedSession through_a_file(const Sequence& sequence, int chunk, const std::shared_ptr<LoadedModel>& model,
                                    std::shared_ptr<KvCache> cache = nullptr) {
  const TemporaryFile file(std::vector<std::byte>{});
  const Status saved = save_session(file.path(), sequence, chunk, {});
  EXPECT_TRUE(saved.ok()) << saved.message();
  auto loaded = load_session(file.path(), model,
                             [&](const SessionHead&, const RetentionPolicy&) -> Result<std::shared_ptr<KvCache>> {
                               if (cache != nullptr) return std::move(cache);
                               return new_cache(model, std::uint64_t{1} << 26);
                             });
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? std::move(*loaded) : LoadedSession();
}

}  // namespace kvasir::test
