// The page that page.h fills in: trainer/report/page.html, with names in double braces where something goes.
#pragma once

namespace concord {

extern const char* const kPageTemplate;

}  // namespace concord
