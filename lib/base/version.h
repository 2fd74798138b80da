/*
 * version.h: what zerotrain calls itself.
 */
#ifndef ZT_BASE_VERSION_H
#define ZT_BASE_VERSION_H

#define ZT_VERSION "0.1.0"

#endif
