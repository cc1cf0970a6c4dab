/**
 * For attacks: `nested(action)` does it as root of all namespaces of its own, which whoever calls it may make, and `mount` mounts there. An
 * action that breaks is a fault of the attack.
 */
export const NESTED = `
ALL_NAMESPACES = 0x10000000 | 0x20000 | 0x40000000 | 0x20000000 | 0x02000000 | 0x04000000 | 0x08000000
def mount(kind, at, options=None, flags=0):
    os.makedirs(at, exist_ok=True)
    checked(libc.mount(b'x', at.encode(), kind, flags, options.encode() if options else None))
def nested(action):
    sys.stdout.flush()
    pid, uid, gid = os.fork(), os.getuid(), os.getgid()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        checked(libc.unshare(ALL_NAMESPACES))
        write('/proc/self/setgroups', b'deny')
        write('/proc/self/uid_map', b'0 %d 1' % uid)
        write('/proc/self/gid_map', b'0 %d 1' % gid)
        pid = os.fork()
        if pid: os.waitpid(pid, 0)
        else: action()
    except BaseException as error: print('nested\\tFAULT ' + repr(error))
    finally:
        sys.stdout.flush()
        os._exit(0)
`;
