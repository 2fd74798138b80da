/* build.h: which build of the program this is. */
#ifndef ZT_BASE_BUILD_H
#define ZT_BASE_BUILD_H

/*
 * "0.1.0, build 3a6cc3baaa88": the version, and what the linker made of all that is in the program, so two
 * programs with the same name of a build are the same. "unknown" where the linker was told to leave it out.
 */
const char *zt_build_name(void);

#endif
