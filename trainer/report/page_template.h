// The page that page.h fills in: trainer/report/page.html, with placeholders in double braces.
#pragma once

namespace concord {

extern const char* const kPageTemplate;

}  // namespace concord
