def report(place):
    return ""
