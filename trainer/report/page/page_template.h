// The template of page.h: trainer/report/page/page.html, with placeholders in double braces.
#pragma once

namespace concord {

extern const char* const kPageTemplate;
// The part of its script that reloads a served page.
extern const char* const kPageRefresh;

}  // namespace concord
