/* A libucp of another age, as far as anybody looks into it. */
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release);

__attribute__((visibility("default"))) void ucp_get_version(unsigned* major, unsigned* minor,
                                                            unsigned* release) {
  *major = 1;
  *minor = 9;
  *release = 2;
}
