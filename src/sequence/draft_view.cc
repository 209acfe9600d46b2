#include "sequence/draft_view.h"

#include "base/status.h"
#include "retention/registry.h"

namespace kvasir {

Result<DraftView> parse_draft_view(std::string_view policy) {
  const Result<std::unique_ptr<RetentionPolicy>> made = make_policy(policy);
  if (!made.ok()) return Status(made.status()).about({"draft"});
  const PolicyTraits& traits = (*made)->traits();
  const auto bound = (*made)->bound();
  if (!bound || traits.compacts || (*made)->by_token())
    return invalid_argument("draft policy:{}: drafts can be made under streaming and window; give one of them",
                            traits.spec)
        .about({"draft"});
  return DraftView{traits.sinks, *bound - traits.sinks};
}

}  // namespace kvasir
